// Save what is shown: a picture as SVG, PNG, PDF or HTML, or all weights as NPZ.

import * as api from "./api.js";
import { announce, el } from "./dom.js";

const FORMATS = { svg: "SVG", png: "PNG", pdf: "PDF", html: "HTML", npz: "NPZ, all weights" };
const SHARP = 2; // px of a PNG for each px of the picture

/** The PNG is drawn by the browser, which has fonts for every script. */
async function png(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(await svg.text())}`;
  await image.decode();
  const canvas = el("canvas", { width: SHARP * image.width, height: SHARP * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((resolve) => {
    canvas.toBlob(resolve, "image/png");
  });
  if (blob) return blob;
  throw new Error("This picture is too large for a PNG; save it as SVG.");
}

/** A menu; `picture()` returns {run, map, head, level} of what is shown. */
export function exportMenu(picture) {
  const status = el("span.dim");
  async function save(format) {
    const { run, map, head, level } = picture(),
      { kind, layer } = run.maps[map];
    status.textContent = "…";
    try {
      const blob = await api.file(run, map, head, level, format === "png" ? "svg" : format);
      const url = URL.createObjectURL(format === "png" ? await png(blob) : blob);
      const name =
        format === "npz"
          ? "attention"
          : `${kind}-${layer + 1}-${head === "mean" ? "mean" : `head-${Number(head) + 1}`}`;
      el("a", { href: url, download: `${name}.${format}` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
      status.textContent = "";
      announce(`saved ${name}.${format}`);
      menu.open = false;
    } catch (error) {
      status.textContent = error.message;
      announce(error.message);
    }
  }
  const menu = el(
    "details.menu",
    el("summary.chip", "export"),
    el(
      "div",
      Object.entries(FORMATS).map(([format, name]) =>
        el("button.chip", { onclick: () => save(format) }, name),
      ),
      status,
    ),
  );
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      menu.open = false;
      menu.firstChild.focus();
    }
  });
  return menu;
}
