// Answers of the server may arrive in another order than they were asked for, or when another view is shown.

let views = 0; // that were shown

/** Another view is shown: what those before it still wait for never arrives. */
export const leave = () => {
  views++;
};

/** A function that tells whether the view of now is still shown. */
export function shown() {
  const mine = views;
  return () => mine === views;
}

/**
 * A function that loads what the page shows. Of its calls only the newest counts, and none once another view
 * is shown: what others still wait for with `fresh(promise)` never arrives. An error of the newest call goes
 * to `fail(error, …arguments)`.
 */
export function newest(load, fail) {
  const here = shown();
  let last = 0;
  return (...args) => {
    const mine = ++last;
    const fresh = (promise) =>
      new Promise((resolve, reject) => {
        const counts = () => mine === last && here();
        promise.then(
          (value) => counts() && resolve(value),
          (error) => counts() && reject(error),
        );
      });
    return load(fresh, ...args).catch((error) => fail(error, ...args));
  };
}
