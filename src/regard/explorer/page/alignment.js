// Which source words a translation attends to: as curves and as a matrix.

import * as api from "./api.js";
import { choice, el, headChoice, legend, levelChips, refill } from "./dom.js";
import { exportMenu } from "./export.js";
import { token } from "./format.js";
import { Lines } from "./lines.js";
import { Matrix } from "./matrix.js";
import { newest } from "./newest.js";
import { headOf, rowOf, set, state } from "./state.js";
import { entries, merge, readRow } from "./words.js";

/** A form for gold links and the translation that they belong to. */
function goldForm(run, model, { again }, draw) {
  const target = el("input", { value: state.target, dir: "auto", "aria-label": "Their translation" });
  const links = el("input", { value: state.links, placeholder: "0-0 1-2 2?3", "aria-label": "Gold links" });
  const submit = (event) => {
    event.preventDefault();
    const given = { target: target.value.trim(), links: links.value.trim() };
    if (given.target !== (run.request.target ?? "")) return again(run, { ...given, prefix: "", pins: "" });
    set(given);
    return draw();
  };
  return el(
    "details.gold",
    { open: state.links !== "" || state.target !== "" },
    el("summary", "gold links"),
    el(
      "form.controls",
      { onsubmit: submit },
      model.can?.includes("force")
        ? el("label.field.grow", "translation, if not the model's own ", target)
        : null,
      el("label.field.grow", "links source-target, from 0; ? for possible ones ", links),
      el("button.chip", { type: "submit" }, "draw"),
    ),
  );
}

export function alignmentView(run, model, actions) {
  const maps = run.maps.map((map, index) => ({ ...map, index })).filter((map) => map.kind === "cross");
  let map =
    maps.find((m) => String(m.index) === state.map) ??
    maps.find((m) => m.layer === model.alignment) ??
    maps.at(-1);
  let selected = rowOf(run, "target"),
    data = null,
    rows = [],
    columns = [];

  const sub = el("p.reading"),
    score = el("p.score-line", { "aria-live": "polite" });
  const lines = new Lines({
    rowName: "translation",
    columnName: "source",
    onhover: (row) => choose(row, -1),
    onselect: pin,
  });
  const matrix = new Matrix({
    label: "Attention of target words (rows) to source words (columns)",
    onmove: choose,
    onselect: pin,
    numbers: true,
  });
  const body = el("div.flow", lines.node, matrix.node);
  const controls = el("div.controls"),
    merged = el("span"),
    trust = actions.trustLine(run);
  const menu = exportMenu(() => ({ run, map: map.index, head: headOf(map), level: state.level }));

  function showError(error) {
    sub.textContent = error.message;
  }

  function pin(row) {
    selected = selected === row ? -1 : row;
    set({ row: selected < 0 ? "" : selected, token: "" });
    choose(row, matrix.column);
    trust.update(map, headOf(map));
  }

  function choose(row, column) {
    if (row < 0 || !data) return;
    matrix.move(row, column, false);
    lines.choose(row);
    readRow(sub, data, rows, columns, row, column);
  }

  function showControls() {
    refill(
      controls,
      choice(
        "layer",
        maps.map((m) => [m.index, String(m.layer + 1)]),
        map.index,
        (value) => {
          map = maps.find((m) => String(m.index) === value);
          set({ map: value });
          load();
        },
      ),
      ...headChoice(map, headOf(map), (head) => {
        set({ head });
        load();
      }),
      levelChips(state.level, level),
      ...(model.can?.includes("export") ? [menu] : []),
    );
  }

  function level(value) {
    selected = -1;
    set({ level: value });
    load();
  }

  /** Draw gold links, and how well the strongest weights find them. */
  const drawGold = newest(
    async (fresh) => {
      matrix.mark([]);
      score.replaceChildren();
      if (!state.links || !model.can?.includes("gold")) return;
      const scored = await fresh(api.gold(run, map.index, headOf(map), state.links));
      const number = (entry) => (entry.special ? null : entry.tokens[0]);
      const at = (all, side, word) => {
        const first = side.words.filter((w) => !w.special)[word].tokens[0];
        return all.findIndex((entry) => number(entry) === first);
      };
      matrix.mark(
        scored.possible.map(([s, t]) => ({
          row: at(rows, run.sides.target, t),
          column: at(columns, run.sides.source, s),
          sure: scored.sure.some(([a, b]) => a === s && b === t),
        })),
      );
      score.replaceChildren(
        "AER ",
        el("b.num", scored.aer.toFixed(3)),
        el(
          "span.dim",
          ` · precision ${scored.precision.toFixed(3)} · recall ${scored.recall.toFixed(3)}, of the strongest link of each target word; rings are gold links, dashed ones only possible`,
        ),
      );
    },
    (error) => score.replaceChildren(el("span.error", { role: "alert" }, error.message)),
  );

  const load = newest(async (fresh) => {
    showControls();
    const weights = await fresh(api.head(run, map.index, headOf(map)));
    rows = entries(run.sides.target, state.level);
    columns = entries(run.sides.source, state.level);
    data = merge(weights, map.columns, rows, columns);
    body.classList.toggle("stacked", columns.length > 16);
    const example = columns.find((entry) => entry.tokens.length > 1);
    merged.textContent =
      state.level !== "words"
        ? ""
        : `A word is the sum of its source tokens${example ? ` (${example.text} = ${example.tokens.map((t) => token(run.sides.source.tokens[t])).join(" + ")})` : ""}, and the mean of its target tokens.`;
    lines.show(data, rows, columns);
    matrix.show(data, rows, columns);
    choose(
      selected >= 0 && selected < rows.length
        ? selected
        : Math.min(matrix.row < 0 ? 0 : matrix.row, rows.length - 1),
      -1,
    );
    trust.update(map, headOf(map));
    await drawGold();
  }, showError);

  load();
  return el(
    "section.card",
    el(
      "header",
      el("h2", "Which source words the translation attends to"),
      el("p.dim", "Click a word of the translation."),
      controls,
    ),
    sub,
    body,
    legend(merged),
    score,
    trust.node,
    ...(model.can?.includes("gold") ? [goldForm(run, model, actions, drawGold)] : []),
  );
}
