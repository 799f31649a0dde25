// The panel's picture of the last ten minutes: memory as an area, and below it when a device computed.
import React from 'react';

import { Activity, SPAN_MS, Stretch } from '../link/activity';
import * as amounts from '../text/amounts';
import { Texts } from '../text/texts';

const WIDTH = 600;
const HEIGHT = 40;
/** Of the strip that says when a device computed, and the room above it. */
const STRIP = 6;
const ROOM = HEIGHT - STRIP - 2;
const NS_PER_MS = 1e6;

export function ActivityChart({ activity, texts }: { activity: Activity; texts: Texts }): JSX.Element | null {
  const stretches = activity.stretches(performance.now());
  if (!stretches.some(({ computing, bytes }) => computing || bytes > 0)) {
    return null;
  }
  const most = Math.max(...stretches.map(({ bytes }) => bytes));
  const computed = stretches.filter(({ computing }) => computing);
  const parts = computed.reduce((sum, { from, to }) => sum + to - from, 0);
  const said = texts.say('activity_said', { time: amounts.seconds(parts * SPAN_MS * NS_PER_MS), memory: amounts.memory(most) });
  return (
    <section className="forebay-activity" aria-label={texts.say('activity')}>
      <h3>{texts.say('activity')}</h3>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={said}>
        <path className="forebay-activity-memory" d={stretches.map(stretch => area(stretch, most)).join('')} />
        <rect className="forebay-activity-strip" x={0} y={HEIGHT - STRIP} width={WIDTH} height={STRIP} />
        {computed.map(({ from, to }) => (
          <rect
            key={from}
            className="forebay-activity-computing"
            x={from * WIDTH}
            y={HEIGHT - STRIP}
            width={Math.max(1, (to - from) * WIDTH)}
            height={STRIP}
          />
        ))}
      </svg>
      <p className="forebay-hint">{said}</p>
    </section>
  );
}

function area({ from, to, bytes }: Stretch, most: number): string {
  const top = most > 0 ? ROOM - (ROOM * bytes) / most : ROOM;
  return `M${from * WIDTH} ${ROOM}V${top}H${to * WIDTH}V${ROOM}Z`;
}
