package stack

import (
	"context"
	"log/slog"

	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/dynamo"
)

// OpenConversations opens the store of conversations, which the caller must close. In DynamoDB it creates missing
// tables and waits for them.
func (b *Builder) OpenConversations(ctx context.Context, log *slog.Logger) (store.Conversations, error) {
	if b.Conversation.Store != config.InDynamoDB {
		return openStore(b), nil
	}
	opts := dynamo.Options{
		Prefix: b.Conversation.TablePrefix, Endpoint: b.Conversation.Endpoint, Region: b.Conversation.Region,
		PlainHTTP: b.Conversation.PlainHTTP, CA: b.Conversation.CA, Log: log,
	}
	if !b.Conversation.AccessKey.IsZero() {
		opts.Credentials = func(context.Context) (dynamo.Credentials, error) {
			access, err := b.Conversation.AccessKey.Reveal()
			if err != nil {
				return dynamo.Credentials{}, err
			}
			secret, err := b.Conversation.SecretKey.Reveal()
			return dynamo.Credentials{AccessKey: access, SecretKey: secret}, err
		}
	}
	s, err := dynamo.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := s.EnsureTables(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}
