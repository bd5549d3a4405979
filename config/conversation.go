package config

import (
	"context"
	"log/slog"

	"github.com/seed46cd37a8/atoll/store"
)

func (c *Config) OpenConversations(ctx context.Context, log *slog.Logger) (store.Conversations, error) {
	return openStore(c), nil
}
