package router

import (
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// UnusedAnswerTimeout is unusedAnswerTimeout on this machine.
var UnusedAnswerTimeout time.Duration

func init() {
	conflictTimeout = testenv.Scale(conflictTimeout)
	unusedAnswerTimeout = testenv.Scale(unusedAnswerTimeout)
	UnusedAnswerTimeout = unusedAnswerTimeout
}
