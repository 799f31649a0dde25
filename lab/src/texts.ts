// The texts of the extension in the language that Jupyter has: one catalogue a language, English where it has no entry.
import en from './texts/en.json';
import ko from './texts/ko.json';

export type Key = keyof typeof en;

const CATALOGUES: Record<string, Partial<Record<Key, string>>> = { en, ko };

export class Texts {
  readonly language: string;

  constructor(locale: string) {
    const name = locale.replace('-', '_').split('_')[0].toLowerCase();
    this.language = name in CATALOGUES ? name : 'en';
  }

  say(key: Key, values: Record<string, string | number> = {}): string {
    const text = CATALOGUES[this.language][key] ?? en[key];
    return text.replace(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ''));
  }

  /** What a code of the pool means, or nothing for one that is not known. */
  code(code: string): string {
    const key = `code_${code}`;
    return key in en ? this.say(key as Key) : '';
  }

  /** Why one of several devices computed alone: a reason of ours, or the operator that is named. */
  cause(cause: string): string {
    const key = `alone_${cause}`;
    return key in en ? this.say(key as Key) : cause;
  }
}
