package core

import (
	"fmt"

	"github.com/subspan-dev/subspan/bridges"
	"github.com/subspan-dev/subspan/core/ceiling"
)

// bound is one upper limit of a grant and who set it.
type bound struct {
	mode ceiling.Mode
	by   string
}

// grant computes the mode of a new session. Without an explicit request it is the
// meet of what the role asks for and all bounds, and lowered is the reason when
// that is less than the role asked for. An explicit request above any bound is
// refused rather than lowered: a caller that asked for more must not believe it
// got it.
func grant(requested *ceiling.Mode, role bound, bounds []bound) (mode ceiling.Mode, lowered string, err error) {
	want := role.mode
	if requested != nil {
		want = *requested
	}
	mode = ceiling.Meet(want)
	for _, b := range bounds {
		if !ceiling.Exceeds(mode, b.mode) {
			continue
		}
		if requested != nil {
			cause := &ceiling.ExceededError{Want: want, Have: b.mode, Bound: b.by}
			return ceiling.Readonly, "", bridges.Errorf(bridges.KindPermissionCeiling, "%w", cause).
				WithNext("ask for %s or less", ceiling.Meet(want, b.mode))
		}
		mode = ceiling.Meet(mode, b.mode)
		lowered = fmt.Sprintf("%s asks for %s, %s allows %s", role.by, role.mode, b.by, b.mode)
	}
	return mode, lowered, nil
}
