// The mechanism as a page of its own: no server, no model.
import { view } from "./mechanism.js";

document.getElementById("view").append(view());
