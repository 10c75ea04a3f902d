// Saves a file from the server. An error of the server is shown on the page, not in a new tab.

import { ask } from './api';

export async function save(path: string, name: string): Promise<void> {
  const address = URL.createObjectURL(await (await ask(path)).blob());
  Object.assign(document.createElement('a'), { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
