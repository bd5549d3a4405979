package router

import (
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func init() {
	conflictTimeout = testenv.Scale(conflictTimeout)
	unusedAnswerTimeout = testenv.Scale(unusedAnswerTimeout)
}

// UnusedAnswerTimeout returns unusedAnswerTimeout on this machine.
func UnusedAnswerTimeout() time.Duration { return unusedAnswerTimeout }
