package relay

// BeatSQL is the heartbeat's statement, for the tests of interleavings.
const BeatSQL = beatSQL
