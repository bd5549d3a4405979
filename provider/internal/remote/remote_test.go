package remote_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider { return newProvider(newCloud(t), nil) },
		providertest.Reopen(func(t *testing.T, p atoll.Provider) atoll.Provider { return newProvider(p.(*provider).cloud, nil) }),
		providertest.Steps(func(t *testing.T, step func(string) error) atoll.Provider { return newProvider(newCloud(t), step) }),
		providertest.Count(50))
}
