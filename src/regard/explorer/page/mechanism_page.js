// The mechanism as a page of its own: no server, no model.
import { view } from "./mechanism.js";
import { readAddress } from "./state.js";

readAddress();
document.getElementById("view").append(view());
