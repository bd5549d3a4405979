package config

import (
	"context"
	"errors"
	"log/slog"

	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/dynamo"
)

// Where conversations can be kept.
const (
	inSQLite   = "sqlite"
	inDynamoDB = "dynamodb"
)

// Conversation says where conversations are kept.
type Conversation struct {
	Store       string `yaml:"store" form:"sqlite dynamodb" doc:"where conversations are kept: where all else is written down (sqlite: a file in state_dir, or the database of store.url), or in DynamoDB, for servers on many machines"`
	TablePrefix string `yaml:"table_prefix" doc:"what the names of tables in DynamoDB begin with; those that are missing are made"`
	Endpoint    string `yaml:"endpoint" doc:"service with the tables, if that is not AWS: https://host:port"`
	Region      string `yaml:"region" doc:"region of the tables; that of AWS's own configuration if empty"`
	PlainHTTP   bool   `yaml:"plain_http" doc:"allow an endpoint on another machine without TLS: all who are on the way can read along"`
	CA          string `yaml:"ca" form:"path" doc:"certificates in PEM that sign the service's, besides the system's"`
	AccessKey   Secret `yaml:"access_key" doc:"access key of the service, with secret_key; without, what AWS's own tools use"`
	SecretKey   Secret `yaml:"secret_key" doc:"secret key of the service"`
}

func defaultConversation() Conversation {
	return Conversation{Store: inSQLite, TablePrefix: dynamo.DefaultPrefix}
}

// check calls bad with the key of each value that makes no sense.
func (c Conversation) check(bad func(key string, err error)) {
	bad("conversation.table_prefix", dynamo.CheckPrefix(c.TablePrefix))
	if c.Endpoint != "" {
		bad("conversation.endpoint", dynamo.CheckEndpoint(c.Endpoint, c.PlainHTTP))
	}
	if c.AccessKey.IsZero() != c.SecretKey.IsZero() {
		bad("conversation.access_key", errors.New("goes with conversation.secret_key"))
	}
	if c.Store == inDynamoDB {
		return
	}
	for key, set := range map[string]bool{
		"endpoint": c.Endpoint != "", "region": c.Region != "", "plain_http": c.PlainHTTP, "ca": c.CA != "", "access_key": !c.AccessKey.IsZero(),
	} {
		if set {
			bad("conversation."+key, errors.New("is for DynamoDB only: set conversation.store to dynamodb"))
		}
	}
}

// OpenConversations opens what keeps conversations. In DynamoDB it makes the tables that
// are missing, and waits for them. Whoever is done with it closes it.
func (c *Config) OpenConversations(ctx context.Context, log *slog.Logger) (store.Conversations, error) {
	if c.Conversation.Store != inDynamoDB {
		return openStore(c), nil
	}
	opts := dynamo.Options{
		Prefix: c.Conversation.TablePrefix, Endpoint: c.Conversation.Endpoint, Region: c.Conversation.Region,
		PlainHTTP: c.Conversation.PlainHTTP, CA: c.Conversation.CA, Log: log,
	}
	if !c.Conversation.AccessKey.IsZero() {
		opts.Credentials = func(context.Context) (dynamo.Credentials, error) {
			access, err := c.Conversation.AccessKey.Reveal()
			if err != nil {
				return dynamo.Credentials{}, err
			}
			secret, err := c.Conversation.SecretKey.Reveal()
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
