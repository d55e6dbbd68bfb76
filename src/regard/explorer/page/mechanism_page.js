// The mechanism as a page of its own: no server, no model.
import { mechanismView } from "./mechanism.js";

document.getElementById("view").append(mechanismView());
