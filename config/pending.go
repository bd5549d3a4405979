package config

import (
	"log/slog"

	"github.com/seed46cd37a8/atoll"
)

func pendingProvider(name string) (atoll.Provider, error) {
	return nil, atoll.E("open", name, atoll.ErrUnavailable, nil)
}
func openMock(*Config, *slog.Logger) (atoll.Provider, error)  { return pendingProvider("mock") }
