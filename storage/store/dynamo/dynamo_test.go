package dynamo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/storetest"
)

func TestMain(m *testing.M) {
	// Tests must not use the AWS settings of this machine.
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		os.Unsetenv(name)
	}
	os.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	os.Setenv("AWS_CONFIG_FILE", os.DevNull)
	os.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	testenv.VerifyTestMain(m)
}

func keys(context.Context) (Credentials, error) {
	return Credentials{AccessKey: "testak", SecretKey: "testsecret1"}, nil
}

// optionsFor returns the options of tests for the service at endpoint.
func optionsFor(endpoint string) Options {
	return Options{Endpoint: endpoint, Credentials: keys, Backoff: 10 * time.Millisecond}
}

// open opens a store without creating its tables. It closes the store when the test ends.
func open(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// openReady opens a store and creates its tables.
func openReady(t testing.TB, opts Options) *Store {
	t.Helper()
	s := open(t, opts)
	if err := s.EnsureTables(context.Background()); err != nil {
		t.Fatalf("EnsureTables: %v", err)
	}
	return s
}

// tablePrefixOf returns a table prefix for a test and a name.
func tablePrefixOf(t testing.TB, name string) string {
	sum := sha256.Sum256([]byte(t.Name() + "/" + name))
	return hex.EncodeToString(sum[:8]) + "-"
}

func TestConversations(t *testing.T) {
	endpoint := testenv.DynamoDB(t)
	storetest.RunConversations(t, func(t *testing.T, name string) store.Conversations {
		opts := optionsFor(endpoint)
		opts.Prefix = tablePrefixOf(t, name)
		return openReady(t, opts)
	})
}
