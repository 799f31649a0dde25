// Times, bytes and money for eyes. Amounts of money are rounded to a millionth of the unit: the bill is exact.
import { Flavor, Money } from '../protocol/messages';
import { Image } from '../protocol/rows';
import { Texts } from './texts';

const NANO = 1e9;
const PLACES = 6;

export function seconds(ns: number): string {
  const value = ns / NANO;
  if (value < 10) {
    return `${value.toFixed(3)} s`;
  }
  return value < 120 ? `${value.toFixed(1)} s` : clock(value);
}

/** A duration that is still running: whole seconds, so that it does not flicker. */
export function running(ns: number): string {
  const value = ns / NANO;
  return value < 120 ? `${Math.floor(value)} s` : clock(value);
}

function clock(value: number): string {
  const minutes = Math.floor(value / 60);
  if (minutes < 60) {
    return `${minutes} min ${String(Math.floor(value % 60)).padStart(2, '0')} s`;
  }
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
}

function units(nano: number): string {
  const value = nano / NANO;
  if (value > 0 && value < 10 ** -PLACES) {
    return `< ${(10 ** -PLACES).toFixed(PLACES)}`;
  }
  const [whole, fraction] = value.toFixed(PLACES).split('.');
  return `${whole}.${fraction.replace(/0+$/, '').padEnd(2, '0')}`;
}

export function money(amount: Money): string {
  return `${units(amount.nano)} ${amount.currency}`;
}

/** To the cent, for what is glanced at. */
export function rounded(amount: Money): string {
  return `${(amount.nano / NANO).toFixed(2)} ${amount.currency}`;
}

export function cost(amounts: Money[], texts: Texts): string {
  return amounts.map(money).join(' + ') || texts.say('not_billed');
}

export function rate(flavor: Flavor, texts: Texts): string {
  if (flavor.currency === null) {
    return texts.say('not_billed');
  }
  if (flavor.price_nano_per_hour === null) {
    return texts.say('no_price', { currency: flavor.currency });
  }
  return `${units(flavor.price_nano_per_hour)} ${flavor.currency}/h`;
}

export function memory(bytes: number): string {
  const mebibytes = bytes / 2 ** 20;
  return mebibytes < 1024 || mebibytes % 1024 !== 0 && mebibytes < 10240
    ? `${Math.round(mebibytes)} MiB`
    : `${Math.round(mebibytes / 1024)} GiB`;
}

/** The last image of a session, and how long ago it was kept; empty where there is none. */
export function image(last: Image | null | undefined, texts: Texts): string {
  const age = (at_ns: number) => running(Math.max(0, Date.now() * 1e6 - at_ns));
  return last ? texts.say('image', { size: memory(last.bytes), age: age(last.at_ns) }) : '';
}
