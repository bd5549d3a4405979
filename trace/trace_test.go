package trace_test

import (
	"log/slog"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/providertest"
	"github.com/seed46cd37a8/atoll/trace"
)

func TestForwards(t *testing.T) {
	providertest.Layer(t, func(p atoll.Provider) atoll.Provider {
		return trace.New(p, trace.Options{Log: slog.New(slog.DiscardHandler)})
	})
}
