// The side panel: how the device stands, flavors to choose from, the last cells, and the user's sessions elsewhere.
import { LabIcon, ReactWidget } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import React from 'react';

import { RerunEstimate } from './rerunestimate';
import { Cells } from './cells';
import { Flavors } from './flavors';
import { ActivityChart } from './activitychart';
import { LineSetting } from './linesetting';
import { Link } from '../link/link';
import { Notify } from './notify';
import { OpenLinks } from '../link/openlinks';
import { Sessions } from './sessions';
import { DeviceStatus } from './devicestatus';
import { Texts } from '../text/texts';
import { absence } from './view';

const TICK_MS = 1000;
const REFRESH_MS = 10_000;
/** A panel that is open before nobody asks no more: the kernel would never count as idle. */
const ATTENTION_MS = 300_000;

export class Panel extends ReactWidget {
  constructor(links: OpenLinks, texts: Texts, icon: LabIcon, setLine: (on: boolean) => void) {
    super();
    this._links = links;
    this._texts = texts;
    this._setLine = setLine;
    this.id = 'forebay-panel';
    this.addClass('forebay-panel');
    this.title.icon = icon;
    this.title.caption = texts.say('title');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', texts.say('title'));
    this.node.tabIndex = -1;
    links.changed.connect(this._onChange, this);
    for (const kind of ['pointerdown', 'pointermove', 'keydown']) {
      window.addEventListener(kind, this._attend, { passive: true });
    }
  }

  dispose(): void {
    this._stop();
    for (const kind of ['pointerdown', 'pointermove', 'keydown']) {
      window.removeEventListener(kind, this._attend);
    }
    super.dispose();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._start();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.isVisible) {
      this._start();
    }
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._stop();
  }

  protected onBeforeDetach(message: Message): void {
    this._stop();
    super.onBeforeDetach(message);
  }

  protected onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }

  protected render(): JSX.Element {
    const texts = this._texts;
    const link = this._links.current;
    const nothing = absence(link, texts);
    if (link === null || link.state === null || nothing !== null) {
      return <p className="forebay-hint">{nothing}</p>;
    }
    const { flavors, sessions } = link.overview ?? { flavors: null, sessions: null };
    return (
      <>
        <h2>{texts.say('title')}</h2>
        {this._problem !== '' && <p className="forebay-problem" role="alert">{this._problem}</p>}
        <p className="forebay-unseen" role="status">{this._news}</p>
        <DeviceStatus link={link} state={link.state} texts={texts} />
        <ActivityChart activity={link.activity} texts={texts} />
        <Flavors
          texts={texts}
          flavors={flavors}
          present={link.state.devices[0].flavor?.name ?? null}
          waits={link.mustWait}
          choose={name => this._do(link, 'choose', { flavor: name }, texts.say('chosen', { flavor: name }))}
        />
        <RerunEstimate
          cells={link.state.cells}
          selected={this._links.cell}
          flavors={flavors}
          present={link.state.devices[0].flavor?.name ?? null}
          texts={texts}
        />
        <Cells cells={link.state.cells} texts={texts} />
        <Sessions
          texts={texts}
          sessions={sessions}
          release={(session, what) => this._do(link, 'release', { session }, texts.say('released', { what }))}
        />
        {link.state.notify && (
          <Notify setting={link.state.notify} texts={texts} set={notify => link.tell({ notify: { ...notify } })} />
        )}
        <LineSetting on={!link.state.quiet} label={texts.say('line')} set={this._setLine} />
      </>
    );
  }

  private async _do(link: Link, what: string, values: Record<string, string>, news: string): Promise<void> {
    this._problem = link.mustWait ? this._texts.say('busy') : '';
    this.update();
    try {
      await link.ask(what, values);
      this._problem = '';
      this._news = news;
      await link.look();
    } catch (error) {
      this._problem = (error as Error).message;
    }
    this.update();
  }

  private async _look(): Promise<void> {
    const link = this._links.current;
    if (!link?.state || link.mustWait || absence(link, this._texts) !== null) {
      return;
    }
    try {
      await link.look();
    } catch (error) {
      this._problem = (error as Error).message;
    }
    this.update();
  }

  private _onChange(): void {
    const link = this._links.current;
    if (link !== this._seen) {
      this._seen = link;
      this._problem = '';
      this._news = '';
    }
    if (!this.isVisible) {
      return;
    }
    if (link?.state && link.overview === null && link !== this._asked && !link.mustWait) {
      this._asked = link;
      void this._look();
    }
    this.update();
  }

  private _start(): void {
    this._stop();
    this._attend();
    this._clocks = [
      window.setInterval(() => this.update(), TICK_MS),
      window.setInterval(() => {
        const attended = performance.now() - this._attended < ATTENTION_MS;
        if (attended && document.visibilityState === 'visible' && this._links.current?.busy === false) {
          void this._look();
        }
      }, REFRESH_MS)
    ];
    void this._look();
  }

  private _stop(): void {
    this._clocks.forEach(clock => window.clearInterval(clock));
    this._clocks = [];
  }

  private _attend = (): void => {
    this._attended = performance.now();
  };

  private readonly _links: OpenLinks;
  private readonly _texts: Texts;
  private readonly _setLine: (on: boolean) => void;
  private _problem = '';
  private _news = '';
  private _asked: Link | null = null;
  private _attended = 0;
  private _clocks: number[] = [];
  private _seen: Link | null = null;
}
