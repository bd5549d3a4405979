//go:build !linux

package config

import (
	"context"
	"log/slog"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
)

// imageTree is nil: images are unpacked on Linux only.
func imageTree(*Config, *slog.Logger) func(context.Context, string, func(atoll.Progress)) (*bundle.Tree, error) {
	return nil
}
