// Guess whether a text is German, English or French, as regard.data.language_guess: naive Bayes over letter
// trigrams.

export function readGuesser(text) {
  const [header, ...lines] = text.replace(/\n$/u, "").split("\n");
  const table = new Map(
    lines.map((line) => [
      line.slice(0, 3),
      [...line.slice(3)].map((step) => -0.5 * (step.charCodeAt(0) - 97)),
    ]),
  );
  return { languages: header.split(" "), table };
}

/** The code of the language; null if the two best are too close. */
export function guessLanguage({ languages, table }, text) {
  const letters = ` ${(
      text
        .slice(0, 2000)
        .toLowerCase()
        .match(/\p{L}+/gu) ?? []
    ).join(" ")} `,
    totals = languages.map(() => 0);
  for (let i = 0; i + 3 <= letters.length; i++) {
    table.get(letters.slice(i, i + 3))?.forEach((weight, language) => {
      totals[language] += weight;
    });
  }
  const [best, second] = [...totals].sort((a, b) => b - a);
  return best - second >= 1 ? languages[totals.indexOf(best)] : null;
}
