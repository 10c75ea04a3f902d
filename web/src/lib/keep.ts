// Keeps records from one drawing to the next: a record that is equal to the previous one stays the same object, so that
// the page does not update its element.

export class Keeper<T extends { readonly key: string | number }> {
  private known = new Map<T['key'], T>();

  /** Returns the list, with records of the previous list in place of equal ones. */
  keep(list: readonly T[]): T[] {
    const before = this.known;
    this.known = new Map();
    return list.map((each) => {
      const old = before.get(each.key);
      const kept = old && same(old, each) ? old : each;
      this.known.set(kept.key, kept);
      return kept;
    });
  }
}

function same<T extends object>(one: T, other: T): boolean {
  for (const name in other) if (!Object.is(one[name], other[name])) return false;
  return true;
}
