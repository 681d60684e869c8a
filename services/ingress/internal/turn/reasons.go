package turn

// Reasons of a turn's error; with those of package server they are the closed list of
// docs/errors.md.
const (
	// The supervisor, its machine or the child went away while the turn ran, and left no reply.
	ReasonInterrupted = "INTERRUPTED"
	// The model could not be reached, or failed, after Hermes had tried again.
	ReasonModelUnavailable = "MODEL_UNAVAILABLE"
	// Hermes took the message and ended the turn with neither a reply nor a word.
	ReasonNoAnswer = "NO_ANSWER"
	// Hermes stopped at one of its limits, of tokens or of requests, before a reply.
	ReasonModelLimit = "MODEL_LIMIT"
	// The model or Hermes declined to answer.
	ReasonRefused = "MODEL_REFUSED"
	// Hermes does not know the conversation's session any more.
	ReasonSessionUnknown = "SESSION_UNKNOWN"
	// Hermes answered the prompt with an error.
	ReasonPromptError = "PROMPT_ERROR"
	// Hermes ended the turn and had not taken the message; its process is replaced.
	ReasonWedged = "HERMES_WEDGED"
	// The message was never given to Hermes.
	ReasonNotDispatched = "NOT_DISPATCHED"
	// The supervisor would not take the prompt.
	ReasonDispatchRefused = "DISPATCH_REFUSED"
	// Only blocks that Hermes does not read by themselves; no reply exists.
	ReasonNothingReadable = "NOTHING_READABLE"
	// The session's file is damaged or foreign, so that nobody can tell what came of the turn.
	ReasonOutcomeUnknown = "OUTCOME_UNKNOWN"
	// A file of the message went away, or became something else, before it was given to Hermes.
	ReasonFileGone = "FILE_GONE"
	// The file that keeps the message's inline data holds other bytes by now.
	ReasonFileChanged = "FILE_CHANGED"
	// The rows found are already another turn's replies.
	ReasonAlreadyDelivered = "REPLY_ALREADY_DELIVERED"
)
