// What the notebook in front has, in words: shared by the status item and the panel.
import { Link } from './link';
import { Device, Money, State } from './protocol';
import * as amounts from './amounts';
import { Texts } from './texts';

/** The device that has most to say: one that waits, else one that computes, else the first. */
export function foremost(state: State): Device {
  const busy = (device: Device) => device.state !== 'idle' && device.state !== 'resident';
  return state.devices.find(device => device.queued !== null) ?? state.devices.find(busy) ?? state.devices[0];
}

/** For how long a device is in its state by now. */
export function lasting(link: Link, device: Device): number {
  return device.since_ns + (performance.now() - link.heardAt) * 1e6;
}

export function stateOf(link: Link, device: Device, texts: Texts): string {
  if (device.state === 'computing') {
    return texts.say('computing', { time: amounts.running(lasting(link, device)) });
  }
  if (device.state === 'queued') {
    const position = device.queued?.position ?? 0;
    return position > 0 ? texts.say('queued', { position }) : texts.say('queued_somewhere');
  }
  return texts.say(device.state);
}

/** How long a wait lasts yet, by now, or that it takes longer than usual; empty where nobody knows. */
export function leftOf(link: Link, device: Device, texts: Texts): string {
  const estimate = device.queued?.estimate ?? null;
  if (estimate === null) {
    return '';
  }
  const passed = (performance.now() - link.heardAt) / 1e3;
  if (estimate.high_seconds <= passed) {
    const key = estimate.running === 1 ? 'estimate_over_one' : estimate.running > 0 ? 'estimate_over_many' : 'estimate_over';
    const time = amounts.running((estimate.running_seconds + passed) * 1e9);
    return texts.say(key, { count: estimate.running, time });
  }
  const low = Math.max(0, estimate.low_seconds - passed);
  const [least, most] = [low, estimate.high_seconds - passed].map(value => amounts.about(value, texts));
  if (least === most) {
    return texts.say('estimate', { time: most });
  }
  return low < 1 ? texts.say('estimate_most', { time: most }) : texts.say('estimate_range', { low: least, high: most });
}

/** What is spent by now: open leases go on, at so much an hour. */
export function spentBy(link: Link, state: State): Money[] {
  const passed = (performance.now() - link.heardAt) / 3.6e6;
  const running = state.devices.flatMap(device => device.running);
  return state.spent.map(({ currency, nano }) => {
    const rates = running.filter(rate => rate.currency === currency).map(rate => rate.nano);
    return { currency, nano: nano + passed * rates.reduce((sum, rate) => sum + rate, 0) };
  });
}

/** The device time by now. */
export function usedBy(link: Link, state: State): number {
  const running = state.devices.filter(device => device.state === 'computing').length;
  return state.device_ns + running * (performance.now() - link.heardAt) * 1e6;
}

/** Why there is nothing to show; null where there is. */
export function absence(link: Link | null, texts: Texts): string | null {
  if (link === null) {
    return texts.say('no_kernel');
  }
  if (link.state === null) {
    return texts.say('no_package');
  }
  if (link.state.failure !== null) {
    return texts.say('off', { why: link.state.failure });
  }
  return link.state.configured ? null : texts.say('not_set');
}
