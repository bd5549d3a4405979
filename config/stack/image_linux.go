package stack

import (
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/machine/image"
)

func imageOptions(i config.Image) image.Options {
	return image.Options{Insecure: i.Insecure, Pull: atoll.PullPolicy(i.Pull), Timeout: time.Duration(i.Timeout), Limit: i.Limit}
}
