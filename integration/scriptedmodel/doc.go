// Package scriptedmodel is a model with an OpenAI-compatible HTTP interface that follows fixed rules. It is the model of the tests, the
// evidence, the benchmarks and, where no real one is configured, of `make run`; its answers say so.
//
// # Choosing an answer
//
// The first of these that fits answers a request: a reply queued for the prompt (Model.Queue), the newest rule that accepts it
// (Model.On), a directive at the start of the prompt (DirectiveHelp), or an answer made from the request itself. Only the last user message
// counts, so that a directive in the history is not obeyed again. Nothing waits for time: an answer that is to hang or to be slow
// waits for a Gate, which a test observes and releases.
//
// # The prompt
//
// Hermes merges a prompt that got no answer (cancelled, failed, killed) with the next one: the model sees one user message
// "first\n\nsecond". The model therefore remembers what it has not answered in full, by the history before it, and takes it off
// the front: Request.UserText is the message as sent, Request.Prompt the part that is new. A prompt whose answer
// reached a client that was then killed before it stored it can't be told this way and stays in Prompt.
//
// # Kinds of requests
//
// Measured with hermes-agent 0.19.0 over ACP, a custom provider and this model. Every request is POST /v1/chat/completions; at its
// start Hermes also asks GET /v1/models, whose context_length it uses, and POST /api/show, which is answered 404.
//
//   - turn: streamed with usage, system message first, all tools. One for each step of the tool loop; the steps after the first end with tool
//     messages. After an answer cut in its middle, or with finish_reason "length", the next request's last user message is
//     Hermes's own "[System: ...] Continue exactly where you left off".
//   - delegate: as turn, but of a sub-agent of delegate_task: system and one user message, the goal; fewer tools; and a sentence
//     of its own in the system message.
//   - title: not streamed, no tools, temperature 0.3, a system and a user message "User: ...\n\nAssistant: ...". Once a session,
//     beside the first exchange's end or the second turn.
//   - vision: not streamed, no tools, temperature 0.1, one user message with a text and an image part. Before a turn with an image the
//     configured model is not known to see, in the vision_analyze tool, and again in reviews.
//   - review: as turn, with the same system message, tools and history, byte for byte. Only the last user message tells: Hermes's
//     review text, which begins and ends in a fixed way. After about ten model calls (skills) and about ten turns (memory), beside later turns.
//   - other: the rest. Seen: the compaction summary, not streamed, no tools, one user message.
//
// A prompt answered with status 400 or 401 is not tried again, with 429 or 500 it is tried three times (8 to 9 s), with a cut connection
// before any byte three times (about 23 s). Garbage is not tried again. In each case Hermes streams its own prose, answers end_turn and stores no assistant row.
package scriptedmodel
