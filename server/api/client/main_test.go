package client_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }
