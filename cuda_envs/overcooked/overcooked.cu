// Overcooked. Two cooks: one thread plays the game of its env, and each shows its share of what they see.
#include "warpdrive.cuh"
#include "random.cuh"

enum Item { NOTHING, ONION, PLATE, SOUP };
enum Ground { FLOOR, COUNTER, ONION_PILE, PLATE_PILE, GOAL, POT };
enum Action { UP, DOWN, RIGHT, LEFT, STAY, INTERACT };

// A pot's clock: EMPTY, one less for each onion, then steps until the soup is ready.
constexpr int POT_EMPTY = 23;
constexpr int POT_FULL = 20;
constexpr int POT_READY = 0;
constexpr int ONIONS_OF_SOUP = 3;

constexpr int NUM_CELLS = NUM_ROWS * NUM_COLUMNS;
constexpr int NUM_CHANNELS = 26;
constexpr int VIEW_SIZE = NUM_CELLS * NUM_CHANNELS;  // of one cook

// Channels of what is seen: one's own place and heading, then the other's, then what all see alike.
constexpr int SEES_COOK = 0;     // and the other in 1
constexpr int SEES_HEADING = 2;  // 4 of one's own, 4 of the other
constexpr int SEES_COUNTER = 11;
constexpr int SEES_ONIONS_IN_POT = 16;
constexpr int SEES_ONIONS_IN_SOUP = 18;
constexpr int SEES_TIME_TO_COOK = 20;
constexpr int SEES_SOUP = 21;
constexpr int SEES_PLATE = 22;
constexpr int SEES_ONION = 23;
constexpr int LATE = 40;  // with fewer steps left, all are told so
static_assert(NUM_AGENTS == 2, "a view has channels for two cooks");

// The cell in front of another. Kitchens have counters all around, so that there is one in front of all floor.
__device__ __forceinline__ int cell_ahead(int cell, int heading)
{
    return cell + (heading == UP ? -NUM_COLUMNS : heading == DOWN ? NUM_COLUMNS : heading == RIGHT ? 1 : -1);
}

// The widest word of which the views of both cooks together have a whole number.
template <bool IS_EVEN>
struct WordOf {
    typedef unsigned int Type;
};
template <>
struct WordOf<true> {
    typedef unsigned long long Type;
};
typedef WordOf<NUM_CELLS % 2 == 0>::Type Word;
constexpr int NUM_WORDS = NUM_AGENTS * VIEW_SIZE / sizeof(Word);

__device__ __forceinline__ void show_item(int item, unsigned char* cell)
{
    if (item == ONION) cell[SEES_ONION] = 1;
    if (item == PLATE) cell[SEES_PLATE] = 1;
    if (item == SOUP) {
        cell[SEES_ONIONS_IN_SOUP] = ONIONS_OF_SOUP;
        cell[SEES_SOUP] = 1;
    }
}

// Copies what the game does not change into what both cooks of an env see.
//   blank_view  [late, agent, cell, channel]  late: in the last steps of an episode  read
__device__ __forceinline__ void show_kitchen(
    int time, const unsigned char* blank_view, int env, unsigned char* observation)
{
    const bool is_late = EPISODE_LENGTH - time < LATE;
    const Word* const from = reinterpret_cast<const Word*>(blank_view) + (is_late ? NUM_WORDS : 0);
    Word* const to = reinterpret_cast<Word*>(observation) + (long long)env * NUM_WORDS;
    for (int i = first_agent(); i < NUM_WORDS; i += agent_stride()) to[i] = from[i];
}

// Adds what changes, once everyone has seen the game of this step and the kitchen.
__device__ __forceinline__ void show_game(
    const int* cell, const int* heading, const int* holds, const unsigned char* lies, const int* pot, int env,
    unsigned char* observation)
{
    const int first = env * NUM_AGENTS;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        unsigned char* const view = observation + (long long)(first + agent) * VIEW_SIZE;
        for (int who = 0; who < NUM_AGENTS; ++who) {
            const int other = who == agent ? 0 : 1;
            unsigned char* const seen = view + cell[first + who] * NUM_CHANNELS;
            seen[SEES_COOK + other] = 1;
            seen[SEES_HEADING + 4 * other + heading[first + who]] = 1;
            show_item(holds[first + who], seen);
        }
        for (int i = 0; i < NUM_POTS; ++i) {
            unsigned char* const seen = view + POT_CELLS[i] * NUM_CHANNELS;
            const int clock = pot[(long long)env * NUM_POTS + i];
            const int num_onions = min(POT_EMPTY - clock, ONIONS_OF_SOUP);
            const bool cooks = clock < POT_FULL;
            seen[SEES_ONIONS_IN_POT] = cooks ? 0 : num_onions;
            seen[SEES_ONIONS_IN_SOUP] = cooks ? num_onions : 0;
            seen[SEES_TIME_TO_COOK] = cooks ? clock : 0;
            seen[SEES_SOUP] = clock == POT_READY;
        }
        for (int i = 0; i < NUM_COUNTERS; ++i) {
            const int place = COUNTER_CELLS[i];
            const int item = lies[(long long)env * NUM_CELLS + place];
            if (item != NOTHING) {
                unsigned char* const seen = view + place * NUM_CHANNELS;
                seen[SEES_COUNTER] = 0;
                show_item(item, seen);
            }
        }
    }
}

// What an interaction is worth.
struct Paid {
    float team;  // to both, for a delivery
    float own;   // to the cook, for a step towards one
};

// Whether a plate from the pile will be of use: no other lies about, and more pots are in use than cooks hold plates.
__device__ __forceinline__ bool is_plate_of_use(int other_holds, const unsigned char* lies, const int* pots)
{
    bool lies_about = false;
    for (int i = 0; i < NUM_COUNTERS; ++i) lies_about |= lies[COUNTER_CELLS[i]] == PLATE;
    int num_in_use = 0;
    for (int i = 0; i < NUM_POTS; ++i) num_in_use += pots[i] != POT_EMPTY;
    return !lies_about && (other_holds == PLATE) < num_in_use;
}

// Lets a cook do what can be done with what is in front of it.
//   ahead        the cell in front
//   other_holds  what the other cook holds by now
//   ground       [cell]                         read
//   holds        what this cook holds           read, written
//   lies         [cell] what lies on counters   read, written
//   pots         [NUM_POTS]                     read, written
__device__ __forceinline__ Paid interact(
    int ahead, int other_holds, const unsigned char* ground, int& holds, unsigned char* lies, int* pots)
{
    Paid paid = {0.0f, 0.0f};
    const int had = holds;
    const int there = ground[ahead];
    if (there == POT) {
        for (int i = 0; i < NUM_POTS; ++i) {
            if (POT_CELLS[i] != ahead) continue;
            if (had == ONION && pots[i] > POT_FULL) {
                holds = NOTHING;
                pots[i] -= 1;
                paid.own = PAID_FOR_ONION_IN_POT;
            } else if (had == PLATE && pots[i] == POT_READY) {
                holds = SOUP;
                pots[i] = POT_EMPTY;
                paid.own = PAID_FOR_SOUP;
            }
        }
    } else if (there == GOAL) {
        if (had == SOUP) {
            holds = NOTHING;
            paid.team = PAID_FOR_DELIVERY;
        }
    } else if (there == COUNTER) {
        const int found = lies[ahead];
        if ((found == NOTHING) != (had == NOTHING)) {  // it is put down, or picked up
            lies[ahead] = had;
            holds = found;
        }
    } else if (had == NOTHING && there == ONION_PILE) {
        holds = ONION;
    } else if (had == NOTHING && there == PLATE_PILE) {
        holds = PLATE;
        if (is_plate_of_use(other_holds, lies, pots)) paid.own = PAID_FOR_PLATE;
    }
    return paid;
}

// A step of the game: who moves does so at once, who interacts does so where it stands, the first cook before the
// second; then pots cook.
__device__ __forceinline__ void play(
    const int* action, const unsigned char* ground, const float* shaping, int* cell, int* heading, int* holds,
    unsigned char* lies, int* pot, int* num_delivered, float* reward, int env)
{
    const int first = env * NUM_AGENTS;
    unsigned char* const on_counters = lies + (long long)env * NUM_CELLS;
    int* const pots = pot + (long long)env * NUM_POTS;
    int held[2] = {holds[first], holds[first + 1]};
    int from[2], to[2];
    float own[2] = {0.0f, 0.0f};
    float team = 0.0f;
    for (int who = 0; who < 2; ++who) {
        const int move = action[first + who];
        from[who] = to[who] = cell[first + who];
        if (move < STAY) {
            const int wanted = cell_ahead(from[who], move);
            if (ground[wanted] == FLOOR) to[who] = wanted;
            heading[first + who] = move;
        } else if (move == INTERACT) {
            const int ahead = cell_ahead(from[who], heading[first + who]);
            const Paid paid = interact(ahead, held[1 - who], ground, held[who], on_counters, pots);
            team += paid.team;
            own[who] = paid.own;
        }
    }
    const bool collide = to[0] == to[1];
    const bool swap = to[0] == from[1] && to[1] == from[0];
    for (int who = 0; who < 2; ++who) {
        cell[first + who] = collide || swap ? from[who] : to[who];
        holds[first + who] = held[who];
        reward[first + who] = team + shaping[env] * own[who];
    }
    for (int i = 0; i < NUM_POTS; ++i) {
        const int clock = pots[i];
        if (clock <= POT_FULL && clock > POT_READY) pots[i] = clock - 1;
    }
    if (team > 0.0f) num_delivered[env] += team > PAID_FOR_DELIVERY ? 2 : 1;
}

// Plays a step, and shows it.
//   action         [env, agent]                       0 up, 1 down, 2 right, 3 left, 4 stay, 5 interact  read
//   ground         [cell]                             what is there, of Ground                           read
//   blank_view     [late, agent, cell, channel]       see show_kitchen                                   read
//   shaping        [env]                              what steps towards a soup are worth                read
//   cell           [env, agent]                       where a cook stands                                read, written
//   heading        [env, agent]                       0 up, 1 down, 2 right, 3 left                      read, written
//   holds          [env, agent]                       of Item                                            read, written
//   lies           [env, cell]                        of Item, on counters                               read, written
//   pot            [env, pot]                         its clock                                          read, written
//   time_step      [env]                              steps since the episode began                      read, written
//   num_delivered  [env]                              soups of this episode                              read, written
//   soups          [env]                              the same, to be reported                           written
//   observation    [env, agent, row, column, channel]                                                    written
//   reward         [env, agent]                                                                          written
//   terminated     [env]                              never                                              written
//   truncated      [env]                              time is up                                         written
extern "C" __global__ void overcooked_step(
    const int* action, const unsigned char* ground, const unsigned char* blank_view, const float* shaping, int* cell,
    int* heading, int* holds, unsigned char* lies, int* pot, int* time_step, int* num_delivered,
    float* soups, unsigned char* observation, float* reward, bool* terminated, bool* truncated)
{
    const int env = env_index();
    if (env >= NUM_ENVS) return;

    const int time = time_step[env] + 1;
    show_kitchen(time, blank_view, env, observation);
    if (first_agent() == 0) {
        play(action, ground, shaping, cell, heading, holds, lies, pot, num_delivered, reward, env);
    }
    env_sync();
    show_game(cell, heading, holds, lies, pot, env, observation);
    if (first_agent() == 0) {
        time_step[env] = time;
        soups[env] = (float)num_delivered[env];
        terminated[env] = false;
        truncated[env] = time >= EPISODE_LENGTH;
    }
}

// Puts the cooks of an ended env where they start, each heading anywhere, into an empty kitchen; or, with RANDOM_RESET,
// anywhere, with anything in their hands and in the pots.
extern "C" __global__ void overcooked_reset(
    const bool* terminated, const bool* truncated, const unsigned int* seed, const long long* env_step,
    const unsigned char* blank_view, int* cell, int* heading, int* holds, unsigned char* lies, int* pot,
    int* time_step, int* num_delivered, unsigned char* observation)
{
    const int env = env_index();
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;

    show_kitchen(0, blank_view, env, observation);
    if (first_agent() == 0) {
        Random random(seed, env, 0, env_step[env], STREAM_RESET);
        const int first = env * NUM_AGENTS;
        heading[first] = random.below(4);
        heading[first + 1] = random.below(4);
        const int place = random.below(NUM_FLOOR);
        const int other = random.below(NUM_FLOOR - 1);
        cell[first] = RANDOM_RESET ? FLOOR_CELLS[place] : START_CELLS[0];
        cell[first + 1] = RANDOM_RESET ? FLOOR_CELLS[other + (other >= place)] : START_CELLS[1];
        holds[first] = RANDOM_RESET ? random.below(4) : NOTHING;
        holds[first + 1] = RANDOM_RESET ? random.below(4) : NOTHING;
        for (int i = 0; i < NUM_POTS; ++i) {
            pot[(long long)env * NUM_POTS + i] = RANDOM_RESET ? random.below(POT_EMPTY + 1) : POT_EMPTY;
        }
        for (int i = 0; i < NUM_CELLS; ++i) lies[(long long)env * NUM_CELLS + i] = NOTHING;
        time_step[env] = 0;
        num_delivered[env] = 0;
    }
    env_sync();
    show_game(cell, heading, holds, lies, pot, env, observation);
}
