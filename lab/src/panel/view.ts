// What the notebook in front has, in words: shared by the status item and the panel.
import { Link } from '../link/link';
import { Device, Money, State } from '../protocol/messages';
import * as amounts from '../text/amounts';
import { Texts } from '../text/texts';

/** The device that has most to say: one that waits, else one that computes, else the first. */
export function foremost(state: State): Device {
  const busy = (device: Device) => device.state !== 'idle' && device.state !== 'resident';
  return state.devices.find(device => device.queued !== null) ?? state.devices.find(busy) ?? state.devices[0];
}

/** For how long a device is in its state by now. */
export function lasting(link: Link, device: Device): number {
  return device.since_ns + (performance.now() - link.heardAt) * 1e6;
}

/** Whether a cell runs that uses no device: it computes where the notebook is, which costs nothing. */
export function isHere(link: Link, device: Device): boolean {
  return link.running && (device.state === 'idle' || device.state === 'resident');
}

export function stateOf(link: Link, device: Device, texts: Texts): string {
  if (device.state === 'computing') {
    return texts.say('computing', { time: amounts.running(lasting(link, device)) });
  }
  if (isHere(link, device)) {
    return texts.say('on_cpu');
  }
  if (device.state === 'queued') {
    const position = device.queued?.position ?? 0;
    return position > 0 ? texts.say('queued', { position }) : texts.say('queued_somewhere');
  }
  return texts.say(device.state);
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
