package trace

import "github.com/seed46cd37a8/atoll/internal/testing/testenv"

func init() { flushTimeout = testenv.Scale(flushTimeout) }
