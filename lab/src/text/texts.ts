// The texts of the extension in the language that Jupyter has: one catalogue a language, English where it has no entry.
import { Cause } from '../protocol/rows';
import { said } from './causes';
import en from './catalogues/en.json';
import ko from './catalogues/ko.json';

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

  /** What a session does, as the pool names it; a state that is new is shown as sent. */
  state(state: string): string {
    const key = `state_${state}`;
    return key in en ? this.say(key as Key) : state;
  }

  /** What a code of the pool means, or nothing for one that is not known. */
  code(code: string): string {
    const key = `code_${code}`;
    return key in en ? this.say(key as Key) : '';
  }

  /** What a service gave as the reason; as it was sent where it is of an older release. */
  reason(cause: Cause | null | undefined, sent: string): string {
    return said(cause, this.language, sent);
  }

  /** Why one of several devices computed alone: a reason of ours, or the operator that is named. */
  cause(cause: string): string {
    const key = `alone_${cause}`;
    return key in en ? this.say(key as Key) : cause;
  }
}
