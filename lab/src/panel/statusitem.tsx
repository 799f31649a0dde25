// The status bar's item: flavor, rate, spend, what is left of the budget, and at its end the state, which alone changes its width.
import { ReactWidget } from '@jupyterlab/ui-components';
import React from 'react';

import * as amounts from '../text/amounts';
import { OpenLinks } from '../link/openlinks';
import { Texts } from '../text/texts';
import { absence, foremost, spentBy, stateOf } from './view';

const TICK_MS = 1000;

export class StatusItem extends ReactWidget {
  constructor(links: OpenLinks, texts: Texts, open: () => void) {
    super();
    this._links = links;
    this._texts = texts;
    this._open = open;
    this.addClass('forebay-status');
    links.changed.connect(() => {
      this._follow();
      this.update();
    });
    this._follow();
  }

  dispose(): void {
    window.clearInterval(this._clock);
    super.dispose();
  }

  protected render(): JSX.Element | null {
    const link = this._links.current;
    if (link === null || link.state === null || absence(link, this._texts) !== null) {
      return null;
    }
    const texts = this._texts;
    const device = foremost(link.state);
    const flavor = device.flavor;
    const name = flavor?.name ?? texts.say('unknown_flavor');
    const rate = flavor === null ? '' : amounts.rate(flavor, texts);
    const cost = amounts.cost(spentBy(link, link.state), texts);
    const budget = link.state.budget;
    const left =
      link.state.budget_known === false
        ? texts.say('left_unknown')
        : budget === null || budget.left_nano === null
        ? ''
        : texts.say('left_short', { amount: amounts.rounded({ currency: budget.currency, nano: budget.left_nano }) });
    const state = stateOf(link, device, texts);
    const why = device.queued === null || device.state !== 'queued' ? '' : texts.code(device.queued.code);
    const label = texts.say('status_label', { flavor: name, state, rate, cost, left });
    return (
      <>
        <button
          className="forebay-status-button"
          data-state={device.state}
          aria-label={label}
          aria-haspopup="dialog"
          title={device.queued === null ? label : texts.reason(device.queued.cause, device.queued.reason)}
          onClick={this._open}
        >
          <span className="forebay-status-dot" aria-hidden="true" />
          <span className="forebay-status-flavor">{name}</span>
          {rate !== '' && <span className="forebay-status-more">{rate}</span>}
          {link.state.spent.length > 0 && <span className="forebay-status-more forebay-status-spent">{cost}</span>}
          {left !== '' && <span className="forebay-status-more">{left}</span>}
          <span className="forebay-status-state">{why === '' ? state : `${state}: ${why}`}</span>
        </button>
        <span className="forebay-unseen" role="status">
          {device.state === 'computing' ? texts.say('computing', { time: '' }) : state}
        </span>
      </>
    );
  }

  /** Ticks only while something runs. */
  private _follow(): void {
    const ticks = this._links.current?.state?.devices.some(device => device.state === 'computing') ?? false;
    if (ticks && this._clock === undefined) {
      this._clock = window.setInterval(() => this.update(), TICK_MS);
    } else if (!ticks) {
      window.clearInterval(this._clock);
      this._clock = undefined;
    }
  }

  private readonly _links: OpenLinks;
  private readonly _texts: Texts;
  private readonly _open: () => void;
  private _clock: number | undefined;
}
