package dynamo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/storetest"
)

func TestMain(m *testing.M) {
	// Whatever this machine has for AWS is not for tests.
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		os.Unsetenv(name)
	}
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	goleak.VerifyTestMain(m)
}

func keys(context.Context) (Credentials, error) {
	return Credentials{AccessKey: "testak", SecretKey: "testsecret1"}, nil
}

// to is how tests open a store at endpoint.
func to(endpoint string) Options {
	return Options{Endpoint: endpoint, Credentials: keys, Backoff: 10 * time.Millisecond}
}

// open opens a store, without its tables.
func open(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// ready opens a store with its tables.
func ready(t testing.TB, opts Options) *Store {
	t.Helper()
	s := open(t, opts)
	if err := s.EnsureTables(context.Background()); err != nil {
		t.Fatalf("EnsureTables: %v", err)
	}
	return s
}

// named is a prefix of tables for each test and name.
func named(t testing.TB, name string) string {
	sum := sha256.Sum256([]byte(t.Name() + "/" + name))
	return hex.EncodeToString(sum[:8]) + "-"
}

func TestConversations(t *testing.T) {
	endpoint := testenv.DynamoDB(t)
	storetest.RunConversations(t, func(t *testing.T, name string) store.Conversations {
		opts := to(endpoint)
		opts.Prefix = named(t, name)
		return ready(t, opts)
	})
}
