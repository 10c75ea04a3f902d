// What is wrong in the fields of the settings: an error that the page found in a text, or one that the server
// found in a value. Nothing runs while a field holds a text that is no value.

import { ApiError } from './lib/api';

interface FieldError {
  readonly message: string;
  readonly text: string | null; // what is written in the field; null: it is a value, which the server refused
}

/** A field holds something that cannot be sent. */
export class FieldMistake extends Error {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super(`Nothing was run: ${message}.`);
  }
}

export class FieldErrors {
  private errors = $state.raw<Readonly<Record<string, FieldError>>>({});

  message(name: string): string | undefined {
    return this.errors[name]?.message;
  }

  /** What is written in a field whose text is no value. */
  text(name: string): string | null {
    return this.errors[name]?.text ?? null;
  }

  set(name: string, text: string, message: string): void {
    this.errors = { ...this.errors, [name]: { message, text } };
  }

  /** A field was mended, or set by the page. What the server said may be about the old value of another one. */
  clear(...names: string[]): void {
    this.errors = Object.fromEntries(Object.entries(this.errors).filter(([name, each]) => each.text !== null && !names.includes(name)));
  }

  clearAll(): void {
    this.errors = {};
  }

  /** Throws if a field holds a text that is no value. */
  check(): void {
    this.clear();
    const [found] = Object.entries(this.errors);
    if (found) throw new FieldMistake(found[0], found[1].message);
  }

  /** The field that an error is about, marked if the server refused its value. */
  noted(error: unknown): string | null {
    if (error instanceof FieldMistake) return error.field;
    if (!(error instanceof ApiError) || error.status !== 400 || error.param === null) return null;
    const name = error.param.replace(/^sampling\./, '').replace(/[.[].*$/, '');
    if (this.text(name) === null) this.errors = { ...this.errors, [name]: { message: error.message, text: null } };
    return name;
  }
}
