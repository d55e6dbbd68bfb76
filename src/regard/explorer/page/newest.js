// Answers of the server may arrive in another order than they were asked for.

/**
 * A function that loads what the page shows. Of its calls only the newest counts: what an older call still waits
 * for with `fresh(promise)` never arrives. An error of the
 * newest call goes to `fail(error, …arguments)`.
 */
export function newest(load, fail) {
  let last = 0;
  return (...args) => {
    const mine = ++last;
    const fresh = (promise) =>
      new Promise((resolve, reject) => {
        promise.then(
          (value) => mine === last && resolve(value),
          (error) => mine === last && reject(error),
        );
      });
    return load(fresh, ...args).catch((error) => fail(error, ...args));
  };
}
