package config

import (
	"errors"

	"github.com/seed46cd37a8/atoll/storage/store/dynamo/settings"
)

// Values of conversation.store.
const (
	inSQLite   = "sqlite"
	InDynamoDB = "dynamodb"
)

// Conversation configures the store of conversations.
type Conversation struct {
	Store       string `yaml:"store" form:"sqlite dynamodb" doc:"store of conversations: sqlite for that of all other records (a file in state_dir, or the database of store.url), or dynamodb for DynamoDB, for servers on many machines"`
	TablePrefix string `yaml:"table_prefix" doc:"prefix of the names of tables in DynamoDB; missing tables are created"`
	Endpoint    string `yaml:"endpoint" doc:"service with the tables, if not AWS: https://host:port"`
	Region      string `yaml:"region" doc:"region of the tables; empty means that of AWS's own configuration"`
	PlainHTTP   bool   `yaml:"plain_http" doc:"allow an endpoint on another machine without TLS: everybody on the network path can read the data"`
	CA          string `yaml:"ca" form:"path" doc:"PEM file with certificates that may have signed the service's, besides the system's"`
	AccessKey   Secret `yaml:"access_key" doc:"access key of the service, with secret_key; if empty, the credentials of AWS's own tools are used"`
	SecretKey   Secret `yaml:"secret_key" doc:"secret key of the service"`
}

func defaultConversation() Conversation {
	return Conversation{Store: inSQLite, TablePrefix: settings.DefaultPrefix}
}

// checkValues calls bad with the key of each invalid value.
func (c Conversation) checkValues(bad func(key string, err error)) {
	bad("conversation.table_prefix", settings.CheckPrefix(c.TablePrefix))
	if c.Endpoint != "" {
		bad("conversation.endpoint", settings.CheckEndpoint(c.Endpoint, c.PlainHTTP))
	}
	if c.AccessKey.IsZero() != c.SecretKey.IsZero() {
		bad("conversation.access_key", errors.New("requires conversation.secret_key, and the other way round"))
	}
	if c.Store == InDynamoDB {
		return
	}
	for key, set := range map[string]bool{
		"endpoint": c.Endpoint != "", "region": c.Region != "", "plain_http": c.PlainHTTP, "ca": c.CA != "", "access_key": !c.AccessKey.IsZero(),
	} {
		if set {
			bad("conversation."+key, errors.New("only valid for DynamoDB: set conversation.store to dynamodb"))
		}
	}
}
