// What is drawn is worked out anew as a whole, and put on the page in parts: an entry that says what it said
// before stays the same object, and the page leaves alone what was drawn from it.

export class Keeper<T extends { readonly key: string | number }> {
  private known = new Map<T['key'], T>();

  /** The list, with entries of the last one wherever they say the same. */
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
