package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// each is a line for each of some ids.
func each(ids []int64, format string) (lines []string) {
	for _, id := range ids {
		lines = append(lines, fmt.Sprintf(format, id))
	}
	return lines
}

// join is a list of ids for people.
func join(ids []int64) string { return strings.Join(each(ids, "%d"), ", ") }

// without are the ids that are not among some others.
func without(ids, some []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(some, id) })
}

// having are the ids that have this one of their results.
func having[R comparable](ids []int64, results []R, result R) (some []int64) {
	for i, r := range results {
		if r == result {
			some = append(some, ids[i])
		}
	}
	return some
}

// taskID reads the id of a task.
func taskID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, usage("%q is no id of a task: that is a number", text)
	}
	return id, nil
}

// taskIDs reads ids. One that is given twice counts once.
func taskIDs(args []string) (ids []int64, err error) {
	for _, arg := range args {
		id, err := taskID(arg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
