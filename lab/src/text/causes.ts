// What a cause of the pool or of billing says: the catalogues are those of wire/forebay_wire/sentences, which tells what they may hold.
import { Cause } from '../protocol/rows';
import en from './sentences/en.json';
import ko from './sentences/ko.json';

const CATALOGUES: Record<string, Record<string, string>> = { en, ko };
const WHOLE_MILLI = 1000;
const CHOICES_SHORT_MAX = 3;
const MIB = 2 ** 20;
const GIB = 2 ** 30;

/** The sentence in one of the catalogues' languages; as it was sent where there is no cause, or one that is not known here. */
export function said(cause: Cause | null | undefined, language: string, sent: string): string {
  return (cause ? sentence(cause, CATALOGUES[language] ?? en) : null) ?? sent;
}

function sentence(cause: Cause, texts: Record<string, string>): string | null {
  if (cause.code === null) {
    return cause.message ?? null;
  }
  const parts = cause.parts.map(part => sentence(part, texts));
  const text = (cause.values.count === 1 ? texts[`${cause.code}_one`] : undefined) ?? texts[cause.code];
  if (text === undefined || parts.includes(null)) {
    return null;
  }
  const joined: Record<string, string> = { parts: parts.join(texts.join_parts), ways: choice(parts as string[], texts) };
  let known = true;
  const filled = text.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = cause.values[name];
    const place = /^\d+$/.test(name) ? parts[Number(name)] : value === undefined ? joined[name] : shown(name, value, texts);
    known = known && place !== undefined;
    return place ?? '';
  });
  return known ? filled : null;
}

function shown(name: string, value: string | number, texts: Record<string, string>): string {
  if (typeof value === 'string') {
    return value;
  }
  if (name.endsWith('_milli')) {
    return texts[value === WHOLE_MILLI ? 'devices_one' : 'devices'].replace('{count}', String(value / WHOLE_MILLI));
  }
  return name.endsWith('_bytes') ? memory(value) : String(value);
}

function memory(bytes: number): string {
  return bytes > 0 && bytes < Math.floor(GIB / 10) ? `${(bytes / MIB).toFixed(1)} MiB` : `${(bytes / GIB).toFixed(1)} GiB`;
}

/** `one or two or three`; of more, `one, two, three or four`. */
function choice(parts: string[], texts: Record<string, string>): string {
  const ways = parts.length <= CHOICES_SHORT_MAX ? parts : [parts.slice(0, -1).join(', '), parts[parts.length - 1]];
  return ways.join(texts.join_ways);
}
