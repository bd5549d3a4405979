package atoll

import (
	"fmt"
	"strconv"
	"strings"
)

// GPUs says which GPUs of its machine a sandbox has: none (""), "all", so many
// of them ("2"), or certain ones by their driver's ids ("device=0,GPU-3a23c669").
// It is what docker's --gpus takes.
type GPUs string

// Devices returns how many GPUs are asked for, -1 being all, or else the ids of
// those that are. It fails when g is none of the forms.
func (g GPUs) Devices() (count int, ids []string, err error) {
	switch g {
	case "":
		return 0, nil, nil
	case "all":
		return -1, nil, nil
	}
	if list, ok := strings.CutPrefix(string(g), "device="); ok {
		ids = strings.Split(list, ",")
		for _, id := range ids {
			if id == "" || strings.Trim(id, gpuChars) != "" {
				return 0, nil, fmt.Errorf("gpus %q: write the ids of devices like device=0,1", g)
			}
		}
		return 0, ids, nil
	}
	n, err := strconv.ParseUint(string(g), 10, 16)
	if err != nil || n == 0 {
		return 0, nil, fmt.Errorf("gpus %q: write all, how many, or which, like device=0,1", g)
	}
	return int(n), nil, nil
}

// gpuChars are those of drivers' ids, as of "MIG-GPU-3a23c669/0/0".
const gpuChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:"
