// The panel's first part: how each device of the notebook stands, and the money.
import React from 'react';

import * as amounts from '../text/amounts';
import { Link } from '../link/link';
import { Alone, Device, Segment, State } from '../protocol/messages';
import { Texts } from '../text/texts';
import { isHere, spentBy, stateOf, usedBy } from './view';

interface Props {
  link: Link;
  state: State;
  texts: Texts;
}

export function DeviceStatus({ link, state, texts }: Props): JSX.Element {
  const budget = state.budget;
  return (
    <section aria-label={texts.say('state')}>
      {state.devices.map(device => (
        <One key={device.device} link={link} device={device} several={state.devices.length > 1} texts={texts} />
      ))}
      <dl>
        <dt>{texts.say('spent')}</dt>
        <dd>
          {texts.say('spent_value', {
            cost: amounts.cost(spentBy(link, state), texts),
            time: amounts.seconds(usedBy(link, state))
          })}
        </dd>
        {budget !== null && budget.left_nano !== null && (
          <>
            <dt>{texts.say('left')}</dt>
            <dd>{amounts.money({ currency: budget.currency, nano: budget.left_nano })}</dd>
          </>
        )}
      </dl>
      {state.problem && <p className="forebay-problem">{state.problem}</p>}
      {budget !== null && budget.sentence !== null && (
        <p className="forebay-problem">{texts.reason(budget.cause, budget.sentence)}</p>
      )}
    </section>
  );
}

function One({ link, device, several, texts }: { link: Link; device: Device; several: boolean; texts: Texts }): JSX.Element {
  const flavor = device.flavor;
  const total = flavor?.memory_bytes ?? null;
  return (
    <>
      <p className="forebay-state" data-state={device.state}>
        <span className="forebay-status-dot" aria-hidden="true" />
        {several && <span>cuda:{device.device} </span>}
        <strong>{flavor?.name ?? texts.say('unknown_flavor')}</strong> <span>{stateOf(link, device, texts)}</span>
      </p>
      {device.queued !== null && <p className="forebay-reason">{reason(device, texts)}</p>}
      {isHere(link, device) && <p className="forebay-hint">{texts.say('on_cpu_hint')}</p>}
      {device.state === 'idle' && !isHere(link, device) && <p className="forebay-hint">{texts.say('idle_hint')}</p>}
      {device.state === 'resident' && <p className="forebay-hint">{texts.say('resident_hint')}</p>}
      {device.state === 'moving' && <p className="forebay-hint">{texts.say('moving_hint')}</p>}
      {device.alone && <p className="forebay-alone forebay-hint">{aloneOf(device.alone, texts)}</p>}
      <Segments segments={device.segments ?? []} texts={texts} />
      <dl>
        {flavor !== null && (
          <>
            <dt>{texts.say('rate')}</dt>
            <dd>{amounts.rate(flavor, texts)}</dd>
          </>
        )}
        <dt>{texts.say('memory')}</dt>
        <dd>
          {total === null
            ? amounts.memory(device.memory_bytes)
            : texts.say('memory_value', { used: amounts.memory(device.memory_bytes), total: amounts.memory(total) })}
          {total !== null && <meter aria-label={texts.say('memory')} min={0} max={total} value={device.memory_bytes} />}
        </dd>
        {device.model !== null && (
          <>
            <dt>{texts.say('device')}</dt>
            <dd>{device.model}</dd>
          </>
        )}
      </dl>
    </>
  );
}

/** Of a program that asks to be compiled: how what came again was carried out. */
function Segments({ segments, texts }: { segments: Segment[]; texts: Texts }): JSX.Element | null {
  return segments.length === 0 ? null : (
    <ul className="forebay-segments forebay-hint" aria-label={texts.say('segments')}>
      {segments.map(({ calls, times, tier, why }, place) => (
        <li key={place}>
          {texts.say('segment', { calls, times, tier })}
          {why && ` (${why})`}
        </li>
      ))}
    </ul>
  );
}

function aloneOf({ devices, percent, causes }: Alone, texts: Texts): string {
  return texts.say('alone', { devices, percent, causes: causes.map(cause => texts.cause(cause)).join(', ') });
}

function reason(device: Device, texts: Texts): string {
  const { reason: sent, cause, left } = device.queued!;
  return `${texts.reason(cause, sent)} ${left ?? ''}`.trimEnd();
}
