// What happened, for who measures: workerd runs all objects of a namespace's class in this one isolate.
const received = new Set(), answered = new Map(), due = new Map(), fired = new Map();

export const facts = {
  receive(text) { received.add(text); },
  answer(text) { answered.set(text, Date.now() / 1000); },
  set(timer, at) { due.set(timer, at); },
  fire(timer) { if (!fired.has(timer)) fired.set(timer, Date.now() / 1000); },
  response() {
    const now = Date.now() / 1000;
    let late = 0;
    for (const [timer, at] of due) if (at <= now && !fired.has(timer)) late += 1;
    return Response.json({
      unfinished: received.size - answered.size + late,
      answered: Object.fromEntries(answered),
      fired: [...fired].filter(([timer]) => due.has(timer)).map(([timer, at]) => [due.get(timer), at]),
    });
  },
};

// "timers 5 1790000000.5" as the moment, and a name for each timer.
export function timers(text, name) {
  const [, count, at] = text.split(" ");
  return { at: Number(at), names: [...Array(Number(count)).keys()].map((n) => `${name} ${at} ${n}`) };
}
