package guest

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
)

// The files of a directory that a container for one program is told by what it is to do,
// and tells what came of it.
const (
	JobFile     = "job.json"     // a Job
	OutcomeFile = "outcome.json" // an Outcome
)

// A Job is a program to run in a Machine that is for it alone.
type Job struct {
	Machine Config   `json:"machine"`
	Compute jobs.Job `json:"compute"`
}

// An Outcome is what came of a Job: a result, or an error's kind and message. It was
// written where programs run that nobody trusts, and may be theirs.
type Outcome struct {
	Result  *jobs.Result `json:"result,omitempty"`
	Kind    atoll.Kind   `json:"kind,omitempty"`
	Message string       `json:"message,omitempty"`
}
