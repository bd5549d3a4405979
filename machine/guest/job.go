package guest

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// The files of a directory that connects a container for one program with its host.
const (
	JobFile     = "job.json"     // a Job
	OutcomeFile = "outcome.json" // an Outcome
)

// A Job is a program to run in a Machine of its own.
type Job struct {
	Machine Config   `json:"machine"`
	Compute jobs.Job `json:"compute"`
}

// An Outcome is the result of a Job, or the kind and message of its error. Untrusted programs ran
// where it was written, and may have written it.
type Outcome struct {
	Result  *jobs.Result `json:"result,omitempty"`
	Kind    atoll.Kind   `json:"kind,omitempty"`
	Message string       `json:"message,omitempty"`
}
