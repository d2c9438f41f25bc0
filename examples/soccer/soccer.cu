// Soccer: whoever is nearest to the ball, and near enough, kicks it ahead. The left team's agents come first.
#include "random.cuh"
#include "warpdrive.cuh"
__device__ __forceinline__ float ahead(int agent) { return agent < NUM_AGENTS / 2 ? 1.0f : -1.0f; }
// Everyone sees itself on the field, and the others and the ball (the last) from where it stands.
__device__ __forceinline__ void observe(long long env, const float* x, const float* y, float* observation)
{
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        float* const row = observation + (env * NUM_AGENTS + agent) * NUM_FEATURES;
        for (int i = 0; i <= NUM_AGENTS; ++i) {
            row[2 * i] = ahead(agent) * (i == agent ? 2.0f * x[i] / LENGTH - 1.0f : (x[i] - x[agent]) / LENGTH);
            row[2 * i + 1] = (i == agent ? y[i] : y[i] - y[agent]) / WIDTH;
        }
    }
}
//   action  [env, agent]      0 stay, 1 ahead, 2 back, 3 up, 4 down                           read
//   x, y    [env, agent + 1]  metres; the last is the ball                                    read, written
//   reward  [env, agent]      1 a goal, -1 one against; 0.1 a kick by one's team, -0.1 by theirs    written
extern "C" __global__ void soccer_step(const int* action, float* x, float* y, int* time_step, float* observation,
                                       float* reward, bool* terminated, bool* truncated)
{
    const long long env = env_index(), first = env * (NUM_AGENTS + 1), ball = first + NUM_AGENTS;
    if (env >= NUM_ENVS) return;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride()) {
        const long long i = first + agent, move = action[env * NUM_AGENTS + agent];
        x[i] = fminf(fmaxf(x[i] + ahead(agent) * SPEED * ((move == 1) - (move == 2)), 0.0f), LENGTH);
        y[i] = fminf(fmaxf(y[i] + SPEED * ((move == 3) - (move == 4)), 0.0f), WIDTH);
    }
    env_sync();  // everyone has moved before anyone kicks
    float nearest = KICK_RADIUS * KICK_RADIUS, kick = 0.0f;
    for (int agent = 0; agent < NUM_AGENTS; ++agent) {
        const float dx = x[first + agent] - x[ball], dy = y[first + agent] - y[ball], distance = dx * dx + dy * dy;
        if (distance < nearest) nearest = distance, kick = ahead(agent) * KICK;
    }
    const int goal = (x[ball] + kick > LENGTH) - (x[ball] + kick < 0.0f), time = time_step[env] + 1;
    for (int agent = first_agent(); agent < NUM_AGENTS; agent += agent_stride())
        reward[env * NUM_AGENTS + agent] = ahead(agent) * (goal + 0.1f * kick / KICK);
    env_sync();  // everyone has seen where the ball was before it flies
    if (first_agent() == 0) {
        x[ball] += kick, time_step[env] = time;
        terminated[env] = goal, truncated[env] = !goal && time >= EPISODE_LENGTH;
    }
    env_sync();
    observe(env, x + first, y + first, observation);
}

extern "C" __global__ void soccer_reset(const bool* terminated, const bool* truncated, const unsigned* seed,
    const long long* env_step, float* x, float* y, int* time_step, float* observation)
{
    const long long env = env_index(), first = env * (NUM_AGENTS + 1);
    if (env >= NUM_ENVS || !(terminated[env] || truncated[env])) return;
    for (int i = first_agent(); i <= NUM_AGENTS; i += agent_stride()) {  // the ball as well
        Random random(seed, env, i, env_step[env], STREAM_RESET);
        x[first + i] = random.uniform(0.0f, LENGTH);
        y[first + i] = random.uniform(0.0f, WIDTH);
    }
    if (first_agent() == 0) time_step[env] = 0;
    env_sync();
    observe(env, x + first, y + first, observation);
}
