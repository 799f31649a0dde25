// The panel's list of flavors: what each costs, what serves it, and how long one would wait for it now.
import React from 'react';

import * as amounts from '../text/amounts';
import { Offer } from '../protocol/messages';
import { Texts } from '../text/texts';

const MILLI = 1000;

interface Props {
  texts: Texts;
  /** Null while the pool is asked. */
  flavors: Offer[] | null;
  present: string | null;
  /** Whether the kernel answers only when its cell has ended. */
  waits: boolean;
  choose(name: string): Promise<void>;
}

export function Flavors({ texts, flavors, present, waits, choose }: Props): JSX.Element {
  const [wanted, want] = React.useState<string | null>(null);
  if (flavors === null) {
    return (
      <section>
        <h3>{texts.say('flavors')}</h3>
        <p className="forebay-hint">{texts.say(waits ? 'busy' : 'loading')}</p>
      </section>
    );
  }
  const servable = flavors.filter(flavor => flavor.servable);
  const others = flavors.filter(flavor => !flavor.servable);
  const chosen = wanted ?? present ?? flavors.find(flavor => flavor.chosen)?.name;
  return (
    <section>
      <fieldset>
        <legend>
          <h3>{texts.say('flavors')}</h3>
        </legend>
        {servable.map(flavor => (
          <label key={flavor.name} className="forebay-flavor">
            <input
              type="radio"
              name="forebay-flavor"
              value={flavor.name}
              checked={flavor.name === chosen}
              onChange={() => {
                want(flavor.name);
                void choose(flavor.name).then(() => want(null));
              }}
            />
            <span className="forebay-flavor-name">{flavor.name}</span>
            <span className="forebay-flavor-rate">{amounts.rate(flavor, texts)}</span>
            <span className="forebay-flavor-more">{more(flavor, texts)}</span>
          </label>
        ))}
        <p className="forebay-hint">{texts.say('flavors_hint')}</p>
      </fieldset>
      {others.length > 0 && (
        <details>
          <summary>{texts.say('unavailable', { count: others.length })}</summary>
          <ul>
            {others.map(flavor => (
              <li key={flavor.name}>
                <strong>{flavor.name}</strong>, {amounts.rate(flavor, texts)}: {texts.reason(flavor.cause, flavor.reason ?? more(flavor, texts))}
              </li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}

function more(flavor: Offer, texts: Texts): string {
  const here = flavor.equivalents.filter(({ devices }) => devices !== 0);
  const ways = (here.length > 0 ? here : flavor.equivalents).map(({ count, share_milli, model }) => `${(count * share_milli) / MILLI} × ${model}`);
  const parts = [flavor.memory_bytes === null ? '' : amounts.memory(flavor.memory_bytes)];
  parts.push(ways.length > 0 ? texts.say('served_by', { ways: ways.join(texts.say('or')) }) : '');
  parts.push(here.some(({ count }) => count > 1) ? texts.say('several') : '');
  parts.push(flavor.servable ? flavor.wait ?? '' : '');
  return parts.filter(part => part !== '').join(' · ');
}
