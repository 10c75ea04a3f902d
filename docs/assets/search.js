// The theme's search runs in a worker. These changes make it find options, and work in pages that are opened as files.

// A file has no worker: its script runs in a frame instead. The index comes from search_index.js (hooks.py).
class Frame extends EventTarget {
  constructor(address) {
    super();
    const frame = Object.assign(document.createElement('iframe'), { hidden: true });
    document.body.append(frame);
    this.window = frame.contentWindow;
    this.window.postMessage = (data) => this.dispatchEvent(new MessageEvent('message', { data }));
    const script = Object.assign(this.window.document.createElement('script'), { src: address });
    this.loaded = new Promise((resolve) => script.addEventListener('load', resolve));
    this.window.document.body.append(script);
  }

  postMessage(data) {
    this.loaded.then(() => this.window.dispatchEvent(new MessageEvent('message', { data })));
  }
}
if (location.protocol === 'file:') window.Worker = Frame;

// In a query, a dash excludes the word after it and two dashes are an error. A word that begins with dashes is an
// option here: `--max-tokens` becomes `+max* +tokens*`, which requires words that begin so.
const required = (option) => option.split('-').filter(Boolean).map((word) => `+${word}*`).join(' ');
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message) {
  if (message.type === 2) { // a query
    const data = message.data.replace(/(^|\s)"?-+([\w-]*)"?/g, (_, before, option) => before + required(option));
    message = { ...message, data };
  }
  post.call(this, message);
};
