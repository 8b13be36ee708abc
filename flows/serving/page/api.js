// The service's two questions. Whatever goes wrong is thrown as a Complaint: what, where, expected, do.

export class Complaint extends Error {
  constructor({ what, where, expected, do: advice, status = 0 }) {
    super(what);
    Object.assign(this, { what, where, expected, advice, status });
  }
}

let token = "";
export const setToken = (text) => { token = text; };

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: token ? { Authorization: `Bearer ${token}` } : {} });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Complaint({
      what: "the service does not answer", where: location.host, expected: "a running service",
      do: "start it again (procap serve), then try again",
    });
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new Complaint(said?.what ? said : {
    what: `status ${answer.status}`, where: path, expected: "an answer", do: "try again", status: answer.status,
  });
}

export async function explain(before, after, signal) {
  const body = new FormData();
  body.append("before", before);
  body.append("after", after);
  return (await ask("v1/explain", { method: "POST", body, signal })).json();
}

export const aboutModel = async () => (await ask("v1/model")).json();
export const card = async () => (await ask("v1/card")).text();
export const file = async (path) => (await ask(path)).blob();
export const examples = async () => (await ask("page/examples/examples.json")).json();
