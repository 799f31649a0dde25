// The panel's switch of the line below cells: shows what was asked for until the kernel says that it is so.
import React from 'react';

interface Props {
  on: boolean;
  label: string;
  set(on: boolean): void;
}

export function LineSetting({ on, label, set }: Props): JSX.Element {
  const [wanted, want] = React.useState<boolean | null>(null);
  React.useEffect(() => want(null), [on]);
  return (
    <label className="forebay-line-setting">
      <input
        type="checkbox"
        checked={wanted ?? on}
        aria-busy={wanted !== null}
        onChange={event => {
          want(event.target.checked);
          set(event.target.checked);
        }}
      />
      {label}
    </label>
  );
}
