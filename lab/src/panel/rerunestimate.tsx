// The panel's section on the selected cell, where it has run: what it takes and costs if it runs again, here and on other flavors.
import React from 'react';

import * as amounts from '../text/amounts';
import { Forecast, forecasts, lastRuns, Range } from './forecast';
import { Cell, Offer } from '../protocol/messages';
import { Texts } from '../text/texts';

interface Props {
  cells: Cell[];
  /** The selected cell's id. */
  selected: string | null;
  /** Null while the pool is asked. */
  flavors: Offer[] | null;
  present: string | null;
  texts: Texts;
}

export function RerunEstimate({ cells, selected, flavors, present, texts }: Props): JSX.Element | null {
  const runs = selected === null ? [] : lastRuns(cells, selected);
  const rows = forecasts(runs, flavors ?? []).sort((one, other) => rank(one, present) - rank(other, present));
  if (rows.length === 0) {
    return null;
  }
  return (
    <section className="forebay-rerun">
      <h3 id="forebay-rerun">{texts.say('rerun', { cell: runs[0].cell ?? '' })}</h3>
      <table aria-labelledby="forebay-rerun">
        <thead>
          <tr>
            <th scope="col">{texts.say('flavor')}</th>
            <th scope="col">{texts.say('device_time')}</th>
            <th scope="col">{texts.say('cost')}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ flavor, device_ns, cost_nano, estimated }) => (
            <tr key={flavor.name}>
              <th scope="row">{flavor.name}</th>
              <td>{said(device_ns, estimated, amounts.seconds)}</td>
              <td>{cost_nano === null ? amounts.rate(flavor, texts) : said(cost_nano, estimated, nano => price(flavor, nano))}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p className="forebay-hint">
        {texts.say(runs.length === 1 ? 'rerun_hint_one' : 'rerun_hint', { count: runs.length })}
        {rows.some(({ estimated }) => estimated) && ` ${texts.say('rerun_estimated')}`}
      </p>
    </section>
  );
}

/** The present flavor first, then what was measured, then the cheapest. */
function rank({ flavor, cost_nano, estimated }: Forecast, present: string | null): number {
  if (flavor.name === present) {
    return -2;
  }
  return estimated ? (cost_nano?.high ?? Number.MAX_VALUE) : -1;
}

/** A unit that both ends have stands once. */
function said({ low, high }: Range, estimated: boolean, text: (value: number) => string): string {
  const [first, last] = [text(low), text(high)];
  const unit = last.slice(last.lastIndexOf(' '));
  const begin = first.endsWith(unit) ? first.slice(0, -unit.length) : first;
  return (estimated ? '≈ ' : '') + (first === last ? first : `${begin} – ${last}`);
}

function price(flavor: Offer, nano: number): string {
  return amounts.money({ currency: flavor.currency ?? '', nano });
}
